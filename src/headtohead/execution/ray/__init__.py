"""Run trials on a Ray cluster: the backend, the actor that runs on a node, and the transfer of files."""
