"""`h2h export` and `h2h push`: write a run as a folder that transformers loads, and upload it to the hub."""
