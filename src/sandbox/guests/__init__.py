"""What runs inside: the guest's files and how they are found."""
