"""Loads the driver inside a guest that has just started."""

import sys

import _host  # type: ignore[import-not-found]  # built into the guest
import _reactor  # type: ignore[import-not-found]

driver = type(sys)("_sandbox_driver")
sys.modules["_sandbox_driver"] = driver
exec(compile(_host.call(b"J"), "<driver>", "exec", dont_inherit=True), driver.__dict__)
driver.__dict__["host_call"] = _host.call

# The guest's own loop parses its line anew each time; the driver serves whatever the line is.
_reactor._run_turn = lambda _text, _name: driver.serve()
