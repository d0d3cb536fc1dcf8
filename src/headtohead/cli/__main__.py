"""`python -m headtohead.cli` runs `h2h` when the script is not on the PATH."""

from headtohead.cli.app import main

main()
