#!/bin/bash
# Prints the title as a slug.
echo $1 | sed 's/ /-/g'
