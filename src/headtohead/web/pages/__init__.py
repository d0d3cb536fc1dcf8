"""The pages, one file each with a `router`; and the same for programs, in api."""
