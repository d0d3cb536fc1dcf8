"""Compare decoding strategies on the same prompts, for `h2h decode`."""
