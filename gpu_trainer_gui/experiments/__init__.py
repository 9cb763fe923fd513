"""Lists of runs to make, and summaries of those made. No torch, no Qt."""
