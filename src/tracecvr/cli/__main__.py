"""`python -m tracecvr.cli`."""

from tracecvr.cli.commands import main

if __name__ == "__main__":
    main()
