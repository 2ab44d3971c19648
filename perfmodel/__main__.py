"""``python -m perfmodel``: the same as the console script."""

from perfmodel.cli import main

if __name__ == "__main__":
    main()
