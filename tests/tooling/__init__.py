"""What the scripts are made of: a virtual environment, children that are really gone afterwards, and the gates."""
