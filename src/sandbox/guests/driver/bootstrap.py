"""Loads the driver inside a guest that has just started."""

import sys

import _host  # type: ignore[import-not-found]  # built into the guest
import _reactor  # type: ignore[import-not-found]

driver = type(sys)("_sandbox_driver")
sys.modules["_sandbox_driver"] = driver
exec(compile(_host.call(b"D"), "<driver>", "exec", dont_inherit=True), driver.__dict__)
driver.__dict__["host_call"] = _host.call


# The guest calls this function with each line that the host hands in; from now on that is a job.
_reactor.serve = driver.serve
_reactor.turn.__code__ = (lambda source, _environ: serve(source)).__code__  # type: ignore[name-defined]  # noqa: F821 - above
