"""The HTTP door: every operation on runs, for programs on this machine or behind a token."""

from mas.service.app import create_app

__all__ = ["create_app"]
