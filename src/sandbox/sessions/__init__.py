"""Sandboxes that persist: sessions, their files, and how long they are kept."""
