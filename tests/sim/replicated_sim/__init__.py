"""A broker group of three copies in virtual time: real brokers, disks that lose what was not synced, faults by seed."""
