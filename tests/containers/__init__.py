"""The files for Prometheus and Grafana, against what ForgeLM shows, with Debian's Prometheus."""
