"""One module per page, each with a `router`, and the JSON API."""
