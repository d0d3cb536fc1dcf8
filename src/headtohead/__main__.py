"""`python -m headtohead` is the command `h2h`."""

from headtohead.cli import main

main()
