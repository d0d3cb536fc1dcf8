"""Where trials run: local workers, Ray, torchrun; and trackers that follow them."""
