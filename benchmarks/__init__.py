"""What the site says of times and memory is measured here: see __main__."""
