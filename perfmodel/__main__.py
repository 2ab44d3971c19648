"""``python -m perfmodel``: the same as the console script."""

try:
    from perfmodel.cli import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

if __name__ == "__main__":
    main()
