"""`h2h decode`: compare decoding strategies on the same prompts."""
