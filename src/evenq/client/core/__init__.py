"""The SDK's decisions: plain objects that take events, give commands and know no clock, thread, file or network."""
