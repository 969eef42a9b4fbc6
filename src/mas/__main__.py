"""`python -m mas` is the `mas` command."""

from mas.cli import main

if __name__ == "__main__":
    main()
