#!/bin/bash
echo blue >/app/answer.txt
