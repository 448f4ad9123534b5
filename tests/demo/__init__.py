"""`scripts/demo`: plays a scenario of the lab, lets the collection cure it, and shows what happened."""
