"""Grafana's dashboards, as code."""
