"""One panel a file; they never import each other."""
