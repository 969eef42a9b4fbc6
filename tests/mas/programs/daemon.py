"""An agent that leaves a daemon behind: another session, an empty environment, no terminal, no parent."""

import os
import sys
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(0, 2)
        code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-c", code, sys.argv[1]], {})
    os._exit(0)
os.wait()
print("left a daemon", flush=True)
time.sleep(float(sys.argv[2]))
