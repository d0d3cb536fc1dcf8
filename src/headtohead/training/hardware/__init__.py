"""The machine that training runs on: devices, precision, memory of the process, and the report of `h2h doctor`."""
