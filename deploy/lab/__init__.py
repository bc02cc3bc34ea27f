"""A real Slurm of virtual nodes on one machine, made and removed by one command.

Standard library only: the lab runs with the system's Python, before any environment exists.
"""
