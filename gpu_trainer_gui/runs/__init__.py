"""What a run is: its job, its events, its file and what is folded from them. No torch, no Qt."""
