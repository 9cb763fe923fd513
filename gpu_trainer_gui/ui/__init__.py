"""The window: Qt and pyqtgraph, no torch."""
