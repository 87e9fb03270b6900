"""Real helm and kubectl, the chart rendered by them, and a cluster that is none."""
