"""Run inside the training loops of other packages. Each module needs the package it is named after."""
