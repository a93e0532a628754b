"""Where runs are computed: this process, other processes here, a Ray cluster."""
