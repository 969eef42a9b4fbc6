"""An agent that writes every byte it is sent into a file named by its id, paste marks left out."""

import os
import sys
import tty

PASTE_MARKS = (b"\x1b[200~", b"\x1b[201~")

tty.setraw(0)
os.write(1, b"\x1b[?2004hready\r\n")
with open(f"{sys.argv[1]}-{os.environ['MAS_AGENT_ID']}", "wb", buffering=0) as file:
    held = b""
    while data := os.read(0, 65_536):
        held += data
        for mark in PASTE_MARKS:
            held = held.replace(mark, b"")
        # A mark may arrive in two pieces: what could be the beginning of one waits for more.
        cut = held.rfind(b"\x1b")
        kept = len(held) - cut if cut >= 0 and len(held) - cut < 6 else 0
        file.write(held[: len(held) - kept])
        held = held[len(held) - kept :]
