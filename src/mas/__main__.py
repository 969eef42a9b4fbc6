"""The `mas` command, also as `python -m mas`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command, or say which packages it lacks."""
    try:
        from mas.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("mas", "sandbox"):
            raise
        sys.exit(f"mas: the package {error.name} is missing; pip install 'session-sandbox[service]'")
    run()


if __name__ == "__main__":
    main()
