"""The pages. They read through `controller.queries`; what changes anything goes through `controller.commands`."""
