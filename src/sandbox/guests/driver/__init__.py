"""The Python program that runs jobs inside the guest."""
