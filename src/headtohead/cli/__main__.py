"""`python -m headtohead.cli`, where the command is not on the path."""

from headtohead.cli.app import main

main()
