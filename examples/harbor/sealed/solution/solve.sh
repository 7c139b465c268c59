#!/bin/bash
echo 97 > /app/answer.txt
