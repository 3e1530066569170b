"""`python -m numus` is the command `numus`."""

from numus.cli import main

if __name__ == "__main__":
    main()
