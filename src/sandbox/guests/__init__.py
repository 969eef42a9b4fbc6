"""What runs inside."""
