"""Multi-agent sessions: teams of agents in tmux, each run with a workspace and a sandbox of its own."""
