"""From pieces of an answer to output items, events and the response itself, sent or stored."""
