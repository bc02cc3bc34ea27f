"""The parts of `manage.py up`: who runs as whom, what lies in RELUME_HOME, which children, and how they are kept."""
