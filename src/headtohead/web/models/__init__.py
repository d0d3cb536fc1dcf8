"""Models behind the web app, held by one child process."""
