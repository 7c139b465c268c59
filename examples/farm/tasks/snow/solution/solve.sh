#!/bin/bash
echo white >/app/answer.txt
