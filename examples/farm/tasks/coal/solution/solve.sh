#!/bin/bash
echo black >/app/answer.txt
