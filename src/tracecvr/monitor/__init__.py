"""Is a stream as the model expects it: expected conversions of each interval, and alarms where others come."""
