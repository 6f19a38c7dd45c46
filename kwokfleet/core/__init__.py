"""What kwokfleet knows, as pure functions: values in, values out; `now` is an argument."""
