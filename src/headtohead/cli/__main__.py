"""`python -m headtohead.cli`, where the command is not on the path."""

from .app import main

main()
